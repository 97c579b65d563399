package nmstate

// EntryKey returns the key of a route or a rule: of two with the same key the upper one replaces the lower one in
// Overlay.
func EntryKey(entry map[string]any) string { return entryKey(entry) }

// Withdraws reports whether a route or rule removes another that lies below it: it is absent, and the other has all
// that it names.
func Withdraws(entry, below map[string]any) bool {
	return isAbsent(entry) && !isAbsent(below) && matchesEntry(entry, below)
}
