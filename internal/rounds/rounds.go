// Package rounds says how often tests repeat what they draw at random.
package rounds

import "os"

// Variable makes tests do all their rounds where it is "all". `make nightly` sets it.
const Variable = "BOWSTRING_TESTS"

// Count is how many rounds a test does: few in `make test`, which are enough to find each
// mistake that the test plants or was written for, and all in `make nightly`.
func Count(few, all int) int {
	if os.Getenv(Variable) == "all" {
		return all
	}
	return few
}
