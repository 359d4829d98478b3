from calls.checks import main

main()
