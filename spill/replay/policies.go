package replay

import (
	"math"
	"strconv"
	"strings"

	"bowstring/schema"
	"bowstring/spill"
)

// Policies are the names of the policies: that of the cache, and those for comparison.
var Policies = []string{"next-use", "lru", "fifo", "static", "score"}

// ParsePolicy returns the policy of a name. next-use uses the oracle. The error is a [schema.FieldError].
func ParsePolicy(name string, oracle spill.Oracle) (spill.Policy, error) {
	switch name {
	case "next-use":
		return spill.NextUse(oracle), nil
	case "lru":
		return lru{}, nil
	case "fifo":
		return fifo{}, nil
	case "static":
		return static{}, nil
	case "score":
		return spill.Score(), nil
	}
	return nil, &schema.FieldError{Field: "policy", Got: strconv.Quote(name), Want: strings.Join(Policies, ", ")}
}

// lru evicts the least recently used blob.
type lru struct{}

// Name implements spill.Policy.
func (lru) Name() string { return "lru" }
func (lru) Worth(e *spill.Entry, _ spill.Time) spill.Worth {
	return spill.Worth{Value: float64(e.Used)}
}
func (lru) Admit(spill.Worth, spill.Worth) bool { return true }

// fifo evicts the blob that was stored first.
type fifo struct{}

// Name implements spill.Policy.
func (fifo) Name() string { return "fifo" }
func (fifo) Worth(e *spill.Entry, _ spill.Time) spill.Worth {
	return spill.Worth{Value: float64(e.Added)}
}
func (fifo) Admit(spill.Worth, spill.Worth) bool { return true }

// static keeps the blobs that were stored first, and stores no more once it is full.
type static struct{}

// Name implements spill.Policy.
func (static) Name() string                               { return "static" }
func (static) Worth(*spill.Entry, spill.Time) spill.Worth { return spill.Worth{Value: math.Inf(1)} }
func (static) Admit(spill.Worth, spill.Worth) bool        { return false }
