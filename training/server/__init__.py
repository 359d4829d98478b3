"""Where state lives: servers hold the parameters, workers push changes and pull values, with bounded staleness.

    serve.py         `serve`: this process is a server
    tables.py        tables, as users describe them, dealt to shards
    optimizers.py    what a server does with a push
    views.py         who is the head of which shard, and who its copy, in each generation
    view_machine.py  what a member does until all agree on the next view, without I/O
    member.py        which this carries out
    holder.py        what the process of a server holds: replicas of shards, and links
    replica.py       one shard that this process holds, and the links to its other replica
    incoming.py      what a server hears
    shards/          a shard's machine, without I/O: its tables, clocks and snapshots
    wire/            frames, and the links on which they travel
    worker/          `Client`: what it pushes and pulls, and sends again when a server is lost
"""
