package peers

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"bowstring/schema"
)

// still is a link to a node that sends nothing.
type still struct{}

func (still) Get(context.Context, Ask) (schema.Blob, error) { return schema.Blob{}, nil }
func (still) SendProgress([]Progress)                       {}
func (still) Up() bool                                      { return true }
func (still) Protocol() int                                 { return 1 }
func (still) Heard() time.Time                              { return time.Time{} }
func (still) Secure() bool                                  { return true }
func (still) Close() error                                  { return nil }

// A node is not taken for silent by a process that was stalled itself, before that process has had time to read
// answers.
func TestLateLook(t *testing.T) {
	o := Options{Patience: time.Hour, Logger: slog.New(slog.DiscardHandler)}
	n := &node{name: "b", link: still{}, opts: &o, made: time.Now()}
	a := &ask{func(error) {}}
	n.begin(a, time.Now().Add(-5*time.Hour))
	defer n.end(a, time.Now(), nil)
	n.look()
	if n.silent.Load() {
		t.Fatal("it was given up by a look that came five hours late")
	}
	n.look()
	if !n.silent.Load() {
		t.Error("it was not given up by a look in time")
	}
}
