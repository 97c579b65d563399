package install

import "time"

// afterAgain is when the file has been compared once more, on a clock that stands still otherwise.
func afterAgain() <-chan time.Time { return time.After(time.Second) }
