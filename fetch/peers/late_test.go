package peers

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"bowstring/schema"
)

// silent is a link to a node that sends nothing.
type silent struct{}

func (silent) Get(context.Context, Ask) (schema.Blob, error) { return schema.Blob{}, nil }
func (silent) SendProgress([]Progress)                       {}
func (silent) Up() bool                                      { return true }
func (silent) Protocol() int                                 { return 1 }
func (silent) Heard() time.Time                              { return time.Time{} }
func (silent) Secure() bool                                  { return true }
func (silent) Close() error                                  { return nil }

// A node is not taken for silent by a process that was stalled itself, before that process has had time to read
// answers.
func TestLateCheck(t *testing.T) {
	o := Options{Patience: time.Hour, Logger: slog.New(slog.DiscardHandler)}
	n := &node{name: "b", link: silent{}, opts: &o, made: time.Now()}
	a := &ask{func(error) {}}
	n.begin(a, time.Now().Add(-5*time.Hour))
	defer n.end(a, time.Now(), nil)
	n.checkSilence()
	if n.silent.Load() {
		t.Fatal("a check five hours late has cancelled its requests")
	}
	n.checkSilence()
	if !n.silent.Load() {
		t.Error("a check in time has not cancelled its requests")
	}
}
