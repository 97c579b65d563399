// Package independent reads a switch's flows with code that shares nothing with package ofctl but the type Flow:
// ofnet's session and libOpenflow's decoder. A fault in ofctl's codec, which writes the flows and reads them back,
// shows there as a difference (docs/decisions/003).
//
// Read runs in a process of its own, since libOpenflow's goroutines can panic where no caller can recover; Reader
// starts that process and takes what it reads.
package independent
