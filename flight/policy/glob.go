package policy

import "strings"

// anonymous is the pattern for callers without a name. No other pattern matches such
// callers, and this pattern matches no caller with a name.
const anonymous = "anonymous"

// everything is the pattern that matches all names.
const everything = "*"

// match reports whether a name matches a pattern: * matches any characters, also none,
// and ? matches one byte. It takes at most len(pattern)·len(name) steps. Patterns come
// from files of operators and names from callers, so that a matcher that backtracks over
// every * would let a caller burn CPU time.
func match(pattern, name string) bool {
	p, n, star, from := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0: // extend the last * by one byte and try again
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// anyMatch reports whether a name matches one of the patterns.
func anyMatch(patterns []string, name string) bool {
	for _, p := range patterns {
		if match(p, name) {
			return true
		}
	}
	return false
}

// covers reports whether the wide pattern matches every name that the narrow one matches.
// It may report false where true is right, because it does not enumerate names. Callers
// use it for warnings only.
func covers(wide, narrow string) bool {
	if wide == everything || wide == narrow {
		return true
	}
	// A * in the narrow pattern matches anything, and only a * in the wide pattern covers
	// that.
	return !strings.ContainsAny(narrow, "?") && !strings.Contains(wide, "?") && match(wide, narrow)
}
