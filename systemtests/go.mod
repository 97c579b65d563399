module github.com/flowkeep/flowkeep/systemtests

go 1.26.0
