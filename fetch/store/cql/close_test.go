package cql

import (
	"fmt"
	"testing"

	"bowstring/fetch/store/protocol"
)

// closable is a store on a mock that the test closes.
func closable(t *testing.T, params string) (*mock, *Store) {
	t.Helper()
	m, port := mockAlone(t, well)
	s := unconnected(t, fmt.Sprintf("cql://127.0.0.1:%d/mock?conns=1%s", port, params), nil)
	var err error
	if s.db, s.steering, err = s.session(t.Context(), "mock", 1); err != nil {
		t.Fatal(err)
	}
	s.gathering = newGathering(s)
	s.Store = protocol.New(database{s}, protocol.System(), protocol.Options{Log: quiet})
	return m, s
}

// TestCloseWaitsForStatements: what a store has sent is answered, or has failed, before its session is closed.
func TestCloseWaitsForStatements(t *testing.T) {
	m, s := closable(t, "")
	var failed error
	s.gathering.running.Go(func() { // as a statement whose members have left
		<-s.ending.Done()
		for range 200 { // for longer than Close takes otherwise
			if failed = m.read(t.Context(), s); failed != nil {
				return
			}
		}
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if failed != nil {
		t.Errorf("the session was closed under a statement: %v", failed)
	}
	if n := len(m.reads()); n != 200 {
		t.Errorf("Close has returned after %d reads of 200", n)
	}
}

// TestCloseBesideSilence: a store is closed though the servers answer nothing any more, not even whether they are there.
func TestCloseWithSilence(t *testing.T) {
	m, s := closable(t, "&timeout=1h&connect=1h")
	asked := make(chan struct{}, 1000)
	m.mute.Store(&asked)
	for range 2 { // on the connection for reads, and on the driver's own; each after a second
		<-asked
	}
	if err := s.Close(); err != nil { // or the test hangs
		t.Error(err)
	}
}
