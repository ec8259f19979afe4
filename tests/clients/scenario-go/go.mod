module tidelog.invalid/clients/scenario

go 1.24.0
