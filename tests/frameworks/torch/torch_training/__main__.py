from torch_training.cases import main

main()
