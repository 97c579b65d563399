//go:build race

package independent_test

// isRace reports whether the race detector is part of this program. Its memory counts against a limit of the process
// too, and is several times the program's own.
const isRace = true
