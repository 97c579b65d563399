// Gate runs make test: phases of test suites, one more run of the tests that failed, and the summary.
//
// A suite is a command of scripts/ that writes test2json events into the folder FLOWKEEP_EVENTS. The suites of a phase
// run at the same time; the phases follow each other. A phase has a bound in minutes that depends on the slowness of the
// machine, which the gate measures before each phase. docs/testing.md has the phases, the bounds and the rules.
//
// The decisions are functions over values: events.go reads the outcome of tests, rerun.go chooses what runs once more,
// phases.go computes limits. suite.go and main.go start processes.
package main
