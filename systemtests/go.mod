module github.com/flowkeep/flowkeep/systemtests

go 1.26.0

require (
	github.com/flowkeep/flowkeep v0.0.0-00010101000000-000000000000
	golang.org/x/sys v0.47.0
)

require (
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
)

replace github.com/flowkeep/flowkeep => ../
