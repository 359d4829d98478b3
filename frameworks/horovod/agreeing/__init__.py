"""What ranks agree on before a collective, without any bytes of a tensor: pure Python that waits for nobody.

    request.py        what a rank submits
    disagreement.py   requests of one name that do not fit together, in words
    agreement.py      who has submitted what: rank 0's table
    fusion.py         small tensors that are carried out as one
    order.py          what rank 0 tells all ranks to carry out
    numbers.py        a name that was used before is a number on the wire
"""
