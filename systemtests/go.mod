module github.com/flowkeep/flowkeep/systemtests

go 1.26.0

require github.com/flowkeep/flowkeep v0.0.0-00010101000000-000000000000

replace github.com/flowkeep/flowkeep => ../
