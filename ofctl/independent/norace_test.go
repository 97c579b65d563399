//go:build !race

package independent_test

const isRace = false
