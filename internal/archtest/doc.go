// Package archtest has no code. Its tests check the import table of ARCHITECTURE.md, the tests that documents name, the
// prose of code and documents, and scripts/subjects.
package archtest
