//go:build race

package feed

// streams is how many the race detector can follow of a large cluster: its runtime now and then ends the program with
// "ThreadSanitizer: CHECK failed" where more goroutines live than it has slots, 255. A stream has five.
const streams = 20
