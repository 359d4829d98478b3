"""Each rank has a stage of the model, and passes micro-batches on."""
