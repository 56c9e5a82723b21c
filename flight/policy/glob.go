package policy

import "strings"

// anonymous is the pattern of callers who have no name. No other pattern matches them,
// and it matches nobody who has one.
const anonymous = "anonymous"

// everything is the pattern of all names.
const everything = "*"

// match reports whether a name is of a pattern, in which * stands for any characters,
// also none, and ? for any one byte. It takes len(pattern)·len(name) steps at most.
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
		case star >= 0: // the last star takes one more
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

func anyMatch(patterns []string, name string) bool {
	for _, p := range patterns {
		if match(p, name) {
			return true
		}
	}
	return false
}

// covers reports whether every name of the narrow pattern is one of the wide one, as far
// as can be told without enumerating names: it may say no where the answer is yes.
func covers(wide, narrow string) bool {
	if wide == everything || wide == narrow {
		return true
	}
	// A * of the narrow pattern stands for anything, which only a * of the wide one takes.
	return !strings.ContainsAny(narrow, "?") && !strings.Contains(wide, "?") && match(wide, narrow)
}
