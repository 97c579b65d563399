// Package archtest has no code; its tests hold the import table of ARCHITECTURE.md true.
package archtest
