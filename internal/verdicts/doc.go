// Package verdicts holds the tests that go through several parts at once: random worlds are resolved, compiled and traced
// through a real Open vSwitch, and the outcome is compared with the oracle.
package verdicts
