//go:build !race

package feed

// streams of a large cluster.
const streams = 5000
