from training.cases import main

main()
