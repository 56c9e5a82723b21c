package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"bowstring/schema"
)

var (
	firstKey  = bytes.Repeat([]byte("old "), 8)
	secondKey = bytes.Repeat([]byte("new "), 8)
	otherKey  = bytes.Repeat([]byte("other "), 8)
)

var errStranger = errors.New("the node is not let in")

// between relays messages between two sides and may change them. nil relays them unchanged.
type between func(fromGuest bool, nth int, message []byte) []byte

// meeting is how two sides have met.
type meeting struct {
	guest, host      error
	other, hello     Hello    // as the guest, and the host, has got to know the other
	guestKey         Known    // that the host has proven
	hostKey          Known    // that the guest has
	fromGuest, spoke [][]byte // messages of the guest and of the host
}

// meet has two sides meet.
func meet(g Guest, h Host, ways [2]Way, via between) (m meeting) {
	if via == nil {
		via = func(_ bool, _ int, message []byte) []byte { return message }
	}
	toHost, toGuest := make(chan []byte, 4), make(chan []byte, 4)
	way := func(w Way, from <-chan []byte, to chan<- []byte, fromGuest bool, sent *[][]byte) Way {
		w.Receive = func() ([]byte, error) {
			if b, ok := <-from; ok {
				return b, nil
			}
			return nil, io.ErrUnexpectedEOF
		}
		w.Send = func(b []byte) error {
			*sent = append(*sent, bytes.Clone(b))
			to <- via(fromGuest, len(*sent), bytes.Clone(b))
			return nil
		}
		return w
	}
	if h.Refuse == nil {
		h.Refuse = func(why string) error { return fmt.Errorf("%w: %s", errStranger, why) }
	}
	var both sync.WaitGroup
	both.Go(func() {
		defer close(toHost)
		m.other, m.guestKey, m.guest = g.Meet(way(ways[0], toGuest, toHost, true, &m.fromGuest))
	})
	both.Go(func() {
		defer close(toGuest)
		m.hello, m.hostKey, m.host = h.Meet(way(ways[1], toHost, toGuest, false, &m.spoke))
	})
	both.Wait()
	return m
}

func guestWith(keys ...[]byte) Guest {
	g := Guest{Hello: Hello{Cluster: "c", Node: "a", Zone: "z", Other: "b", Address: "b:1"}}
	if len(keys) > 0 {
		g.Keys = NewKeys(keys...)
	}
	return g
}

func hostWith(keys ...[]byte) Host {
	h := Host{Cluster: "c", Node: "b", Address: "b:1"}
	if len(keys) > 0 {
		h.Keys = NewKeys(keys...)
	}
	return h
}

// together are both sides of one connection.
func together(method, binding string) [2]Way {
	w := Way{Method: method, Binding: []byte(binding)}
	return [2]Way{w, w}
}

// Two nodes with a common key authenticate to each other, whichever of two keys each proves
// with. So do two nodes without a key. In a rotation each step is compatible with the one
// before it and the one after it.
func TestMeet(t *testing.T) {
	steps := [][][]byte{{firstKey}, {firstKey, secondKey}, {secondKey, firstKey}, {secondKey}}
	for i, of := range steps {
		for j, with := range steps {
			m := meet(guestWith(of...), hostWith(with...), together("m", "tls"), nil)
			if max(i-j, j-i) <= 1 {
				if err := errors.Join(m.guest, m.host); err != nil {
					t.Errorf("a node of step %d asks one of step %d: %v", i, j, err)
				}
				if m.other.Node != "b" || m.hello.Node != "a" || m.hello.Zone != "z" ||
					m.other.Protocols[0] != Protocol {
					t.Errorf("they know each other as %+v and %+v", m.other, m.hello)
				}
				if !bytes.Equal(m.hostKey.key.secret, of[0]) || !bytes.Equal(m.guestKey.key.secret, with[0]) {
					t.Errorf("steps %d and %d have proven other keys than their first", i, j)
				}
			}
			for _, sent := range slices.Concat(m.fromGuest, m.spoke) {
				for _, secret := range [][]byte{firstKey, secondKey} {
					if bytes.Contains(sent, secret) {
						t.Fatal("a key was sent")
					}
				}
			}
		}
	}
	if m := meet(guestWith(), hostWith(), together("m", ""), nil); m.guest != nil || m.host != nil {
		t.Errorf("without keys: %v, %v", m.guest, m.host)
	}
}

// Each side refuses a node that does not know the key, and sends it nothing: not even the
// names of the node and the cluster.
func TestMeetStrangers(t *testing.T) {
	for name, test := range map[string]struct {
		guest Guest
		host  Host
	}{
		"another key":  {guestWith(otherKey), hostWith(firstKey)},
		"no key":       {guestWith(), hostWith(firstKey)},
		"a part of it": {guestWith(firstKey[:31]), hostWith(firstKey)},
		"an old one":   {guestWith(firstKey), hostWith(secondKey)},
	} {
		m := meet(test.guest, test.host, together("m", "tls"), nil)
		if !errors.Is(m.host, errStranger) || m.guest == nil {
			t.Errorf("%s: the host says %v, the guest %v; want that neither lets the other in", name, m.host, m.guest)
		}
		if said := string(bytes.Join(m.spoke, nil)); strings.Contains(said, `"node"`) || len(m.spoke) > 1 {
			t.Errorf("%s: a stranger got %s", name, said)
		}
	}
	m := meet(guestWith(firstKey), hostWith(), together("m", "tls"), nil)
	if !errors.Is(m.guest, schema.ErrUnavailable) || len(m.fromGuest) != 1 {
		t.Errorf("a host without the key, which wants no proof: %v, after %d messages", m.guest, len(m.fromGuest))
	}
	// A host that takes any proof for right has to prove that it knows the key itself.
	for name, forged := range map[string]func(proof []byte) []byte{
		"nothing":       func([]byte) []byte { return nil },
		"zeros":         func([]byte) []byte { return make([]byte, proofBytes) },
		"what it heard": func(proof []byte) []byte { return proof[1:] },
	} {
		g := guestWith(firstKey)
		talk := newSaid("m", nil)
		var heard []byte
		answers := [][]byte{[]byte(`{"protocols":[1],"nonce":"` + strings.Repeat("A", 43) + `="}`)}
		_, _, err := g.Meet(Way{Method: "m",
			Send: func(b []byte) error { heard = b; talk.add(b); return nil },
			Receive: func() ([]byte, error) {
				if len(answers) > 0 {
					b := answers[0]
					answers = nil
					return b, nil
				}
				return append(forged(heard), `{"cluster":"c","node":"b","protocols":[1]}`...), nil
			}})
		if !errors.Is(err, schema.ErrUnavailable) || !strings.Contains(err.Error(), "proven") {
			t.Errorf("a host that proves with %s: %v", name, err)
		}
	}
}

// A recorded exchange authenticates no node again, neither as the requesting side nor as
// the answering one.
func TestMeetReplayed(t *testing.T) {
	heard := meet(guestWith(firstKey), hostWith(firstKey), together("m", "tls"), nil)
	if err := errors.Join(heard.guest, heard.host); err != nil || len(heard.fromGuest) != 2 || len(heard.spoke) != 2 {
		t.Fatalf("%v; %d and %d messages", err, len(heard.fromGuest), len(heard.spoke))
	}
	again := func(fromGuest bool, nth int, b []byte) []byte {
		if fromGuest {
			return heard.fromGuest[nth-1]
		}
		return b
	}
	m := meet(guestWith(otherKey), hostWith(firstKey), together("m", "tls"), again)
	if !errors.Is(m.host, errStranger) || len(m.spoke) != 1 {
		t.Errorf("a node that says again what another has said: %v", m.host)
	}
	g, said := guestWith(firstKey), heard.spoke
	_, _, err := g.Meet(Way{Method: "m", Binding: []byte("tls"), Send: func([]byte) error { return nil },
		Receive: func() ([]byte, error) {
			b := said[0]
			said = said[1:]
			return b, nil
		}})
	if !errors.Is(err, schema.ErrUnavailable) || len(said) != 0 {
		t.Errorf("a host that says again what another has said: %v", err)
	}
}

// A proof for one call is valid for no other: not for another method, connection, name,
// zone or address, nor after a message was changed on the way.
func TestMeetIsBound(t *testing.T) {
	for name, ways := range map[string][2]Way{
		"another method":     {{Method: "m", Binding: []byte("tls")}, {Method: "n", Binding: []byte("tls")}},
		"another connection": {{Method: "m", Binding: []byte("tls")}, {Method: "m", Binding: []byte("TLS")}},
		"TLS on one side":    {{Method: "m", Binding: []byte("tls")}, {Method: "m"}},
		"the other side":     {{Method: "m"}, {Method: "m", Binding: []byte("tls")}},
	} {
		m := meet(guestWith(firstKey), hostWith(firstKey), ways, nil)
		if !errors.Is(m.host, errStranger) || m.guest == nil {
			t.Errorf("%s: %v, %v", name, m.host, m.guest)
		}
	}
	for name, change := range map[string][3]string{
		"the node's name": {"1", `"node":"a"`, `"node":"m"`},
		"its zone":        {"1", `"zone":"z"`, `"zone":"y"`},
		"its cluster":     {"1", `"cluster":"c"`, `"cluster":""`},
		"the address":     {"1", `"address":"b:1"`, `"address":""`},
		"the other name":  {"1", `"other":"b"`, `"other":""`},
		"the protocols":   {"1", `"protocols":[1]`, `"protocols":[1,2]`},
		"the host's name": {"4", `"node":"b"`, `"node":"b","x":1`},
	} {
		changed := false
		on := func(fromGuest bool, nth int, b []byte) []byte {
			if fromGuest == (change[0] == "1") && nth == map[string]int{"1": 1, "4": 2}[change[0]] {
				to := bytes.Replace(b, []byte(change[1]), []byte(change[2]), 1)
				changed = !bytes.Equal(to, b)
				return to
			}
			return b
		}
		m := meet(guestWith(firstKey), hostWith(firstKey), together("m", ""), on)
		if !changed {
			t.Fatalf("%s was not changed: %s", name, m.fromGuest[0])
		}
		if m.guest == nil || change[0] == "1" && !errors.Is(m.host, errStranger) {
			t.Errorf("%s, changed on the way: the host says %v, the guest %v", name, m.host, m.guest)
		}
	}
	// A node that wants another node learns of its mistake after it has proven its
	// identity, and gets no answer. Therefore a program that relays messages from one
	// address to another node gains nothing.
	for name, g := range map[string]Guest{
		"another cluster": {Hello: Hello{Cluster: "d", Node: "a", Other: "b", Address: "b:1"}},
		"another node":    {Hello: Hello{Cluster: "c", Node: "a", Other: "m", Address: "b:1"}},
		"another address": {Hello: Hello{Cluster: "c", Node: "a", Other: "b", Address: "m:1"}},
	} {
		g.Keys = NewKeys(firstKey)
		m := meet(g, hostWith(firstKey), together("m", ""), nil)
		if !errors.Is(m.host, schema.ErrInvalid) || m.guest == nil || len(m.spoke) != 1 {
			t.Errorf("%s: %v, %v, %d answers", name, m.host, m.guest, len(m.spoke))
		}
	}
}

// A connection that was authenticated with a key ends when the key is no longer accepted,
// and lasts until then, whichever key is the first.
func TestKeysEnd(t *testing.T) {
	keys := NewKeys(firstKey)
	h := hostWith()
	h.Keys = keys
	m := meet(guestWith(firstKey), h, together("m", ""), nil)
	if err := errors.Join(m.guest, m.host); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	m.hostKey.Ends(func() { close(ended) })
	kept := make(chan struct{})
	stop := m.hostKey.Ends(func() { close(kept) })
	for _, list := range [][][]byte{{firstKey, secondKey}, {secondKey, firstKey}} {
		keys.Set(list...)
		if m.hostKey.key.gone.Err() != nil {
			t.Fatal("a key that is still accepted has ended")
		}
	}
	if !stop() {
		t.Error("it was ended before")
	}
	keys.Set(secondKey)
	<-ended
	select {
	case <-kept:
		t.Error("a node that had stopped was refused")
	default:
	}
	var none Known
	none.Ends(func() { t.Error("where there is no key, it ends") })()
}
