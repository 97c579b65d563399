package verdicts

// leak returns the beginning of a failure's line: the word LEAK where a denied packet passed, empty where an allowed
// one was lost. The gate repeats a failed test only if it printed no line that begins with LEAK.
func leak(denied bool) string {
	if denied {
		return "LEAK "
	}
	return ""
}
