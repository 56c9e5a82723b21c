package store

import "fmt"

// Levels of a [Finding].
const (
	LevelOK      = "ok"
	LevelWarning = "warning" // it works, and will cost somebody time or data one day
	LevelProblem = "problem" // it does not work, or may lose data now
)

// Finding is what a look at a store's surroundings has found: its servers and their
// settings, or its disk.
type Finding struct {
	Check string `json:"check"` // what was looked at, in a word or two
	Level string `json:"level"`
	Says  string `json:"says"`
	Do    string `json:"do,omitempty"` // what to do about it
}

// Findings collects them.
type Findings []Finding

// OK adds one that needs nothing to be done.
func (f *Findings) OK(check, format string, args ...any) {
	*f = append(*f, Finding{Check: check, Level: LevelOK, Says: fmt.Sprintf(format, args...)})
}

// Warning adds one that may wait; do says what to do.
func (f *Findings) Warning(check, do, format string, args ...any) {
	*f = append(*f, Finding{check, LevelWarning, fmt.Sprintf(format, args...), do})
}

// Problem adds one that may not wait.
func (f *Findings) Problem(check, do, format string, args ...any) {
	*f = append(*f, Finding{check, LevelProblem, fmt.Sprintf(format, args...), do})
}

// Worst is the highest level among them.
func (f Findings) Worst() string {
	worst := LevelOK
	for _, one := range f {
		if one.Level == LevelProblem || one.Level == LevelWarning && worst == LevelOK {
			worst = one.Level
		}
	}
	return worst
}
