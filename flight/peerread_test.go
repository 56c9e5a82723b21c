package flight

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/schema"
)

var clusterKey = []byte("what the nodes of a test have in common")

// reader is a call of another node, as a test makes it.
type reader struct {
	*peer.Conn
	hangUp func()
}

// reader opens a call to read blobs, as another node would.
func (f *fixture) reader() *reader { return f.callOf(peer.ReadMethod, nil) }

// callOf opens a call of a method, over TLS if there is a config. It ends with the test.
func (f *fixture) callOf(method string, config *tls.Config) *reader {
	f.t.Helper()
	conn, hangUp, err := peer.Connect(context.Background(), f.addr, config, method, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(hangUp)
	return &reader{conn, hangUp}
}

// receive returns the next message.
func (l *reader) receive() ([]byte, error) {
	b, err := l.Receive(1 << 20)
	return bytes.Clone(b), err
}

// say sends messages and returns the answers up to the end.
func say(t *testing.T, call *reader, messages ...[]byte) (got [][]byte, err error) {
	t.Helper()
	for _, m := range messages {
		if err := call.Send(m); err != nil && !errors.Is(err, peer.ErrBroken) {
			t.Fatal(err)
		}
	}
	_ = call.End(codes.OK, "") // or the server has ended it
	for {
		m, err := call.receive()
		if err != nil {
			return got, err
		}
		got = append(got, m)
	}
}

func helloOf(protocols ...int) []byte {
	b, err := json.Marshal(peer.Hello{Node: "x", Protocols: protocols})
	if err != nil {
		panic(err)
	}
	return b
}

// A server that is in no cluster has no such method.
func TestPeerReadsAlone(t *testing.T) {
	f := serve(t, Options{})
	if got, err := say(t, f.reader(), helloOf(peer.Protocol)); status.Code(err) != codes.Unimplemented ||
		len(got) > 0 {
		t.Errorf("%d messages came, and %v; want none, and UNIMPLEMENTED", len(got), err)
	}
}

// A malformed message of a node ends its stream with the reason, and harms nothing.
func TestPeerReadsHostile(t *testing.T) {
	f := serve(t, Options{Cluster: &Cluster{Node: "b"}})
	hello := helloOf(peer.Protocol)
	asks := peer.AppendAsks(nil, []peer.Ask{{ID: 1, Ask: peers.Ask{Ref: schema.RefOf(content(1))}}})
	for name, messages := range map[string][][]byte{
		"no hello":             {asks},
		"another protocol":     {helloOf(99)},
		"no protocol":          {helloOf()},
		"nothing":              {hello, nil},
		"another kind":         {hello, []byte("z")},
		"half an ask":          {hello, asks[:len(asks)-1]},
		"more than it says":    {hello, append(asks[:len(asks):len(asks)], 0)},
		"names without an end": {hello, {peer.KindAsks, 255, 255}},
		"other protocols":      {helloOf(2, 3)},
		"a long hello":         {append(helloOf(peer.Protocol), bytes.Repeat([]byte(" "), 64<<10)...)},
		"progress":             {hello, append([]byte{peer.KindProgress}, "{}"...)},
		"progress, cut":        {hello, append([]byte{peer.KindProgress}, `[{"id":1`...)},
		"a blob too large": {hello, peer.AppendAsks(nil,
			[]peer.Ask{{Ask: peers.Ask{Ref: schema.BlobRef{Size: peers.MaxBlob + 1}}}})},
		"a position too small": {hello, peer.AppendAsks(nil, []peer.Ask{{Ask: peers.Ask{Position: -1}}})},
	} {
		if _, err := say(t, f.reader(), messages...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	of := serve(t, Options{Cluster: &Cluster{Name: "mine", Node: "b"}})
	for name, code := range map[string]codes.Code{"mine": codes.OK, "": codes.OK, "other": codes.InvalidArgument} {
		hello, err := json.Marshal(peer.Hello{Cluster: name, Node: "x", Protocols: []int{peer.Protocol}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = say(t, of.reader(), hello)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != code {
			t.Errorf("a node of cluster %q: %v, want %s", name, err, code)
		}
	}
	// Impossible streams are not followed, and the connection stays open.
	progress := append([]byte{peer.KindProgress}, `[{"id":1,"ticket":{"dataset":"none"}},{"id":2,"ticket":17}]`...)
	if got, err := say(t, f.reader(), hello, progress, asks); !errors.Is(err, io.EOF) || len(got) < 1 {
		t.Errorf("after progress of streams that there cannot be, %d messages and %v; want a hello and the end",
			len(got), err)
	}
}

// A node gets the newest common protocol, and the status of each request: a request for
// held blobs gets nothing else.
func TestPeerReadsStatuses(t *testing.T) {
	full := admission.NewEgress(admission.EgressLimits{Zones: map[string]int64{"far": 1}})
	full.Admit("y", "far", "", 1, 1<<20)
	f := serve(t, Options{Cluster: &Cluster{Node: "b", Egress: full}})
	f.fill("d", 10)
	ask := func(held bool) []byte {
		what := peers.Ask{Ref: schema.RefOf(content(1)), Held: held}
		return peer.AppendAsks(nil, []peer.Ask{{ID: 1, Ask: what}})
	}
	for name, test := range map[string]struct {
		zone   string
		ask    []byte
		status peer.Status
	}{
		"what there is": {"", ask(false), peer.Here},
		"what is held":  {"", ask(true), peer.NotHeld},
		"of a full one": {"far", ask(false), peer.Full},
	} {
		call := f.reader()
		other, err := introduce(call, peer.ReadMethod, nil, peer.Hello{Node: "y", Zone: test.zone})
		if err != nil || !slices.Equal(other.Protocols, []int{peer.Protocol}) {
			t.Fatalf("%s: %+v, %v", name, other, err)
		}
		if err := call.Send(test.ask); err != nil {
			t.Fatal(err)
		}
		m, err := call.receive()
		for err == nil && binary.LittleEndian.Uint32(m) == 0 { // only a heartbeat
			m, err = call.receive()
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := peer.Status(binary.LittleEndian.Uint32(m[8:])); got != test.status {
			t.Errorf("%s: the answer has status %d, want %d", name, got, test.status)
		}
		if err := call.End(codes.OK, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// A node that requests much and reads nothing holds the memory of peer reads, and no more.
// When it goes, that memory is free.
func TestPeerReadsToADeafNode(t *testing.T) {
	f := serve(t, Options{Cluster: &Cluster{Node: "b"}})
	f.fill("d", 1000)
	call := f.reader()
	if err := call.Send(helloOf(peer.Protocol)); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() { // until the server stops reading
		defer close(asked)
		for id := uint32(0); id < 20_000; {
			asks := make([]peer.Ask, 200)
			for i := range asks {
				id++
				asks[i] = peer.Ask{ID: id, Ask: peers.Ask{Ref: schema.RefOf(content(int(id) % 1000))}}
			}
			if err := call.Send(peer.AppendAsks(nil, asks)); err != nil {
				return
			}
		}
	}()
	peerReads := func() (used, limit int64) {
		for _, a := range f.engine.Ledger().Accounts() {
			if a.Use == "blobs for other nodes" {
				return a.Used, a.Limit
			}
		}
		t.Fatal("the ledger has no peerReads")
		return 0, 0
	}
	waitFor(t, "peerReads", func() bool { used, _ := peerReads(); return used > 0 })
	if used, limit := peerReads(); used > limit {
		t.Errorf("peerReads take %d bytes of %d", used, limit)
	}
	call.hangUp() // it goes
	<-asked
	waitFor(t, "peerReads to end", func() bool { used, _ := peerReads(); return used == 0 })
}

// deaf is the connection of a node that requests much and reads nothing.
type deaf struct{ bytes.Reader }

// WriteBuffers implements peer.Transport.
func (*deaf) WriteBuffers(net.Buffers, time.Time, time.Time) error { return errors.ErrUnsupported }

// Interrupt implements peer.Transport.
func (*deaf) Interrupt() {}

// said returns the frame of a message.
func said(message []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(message)))
	return append(append(b, 0), message...)
}

// Refused reads take no memory of peer reads: unread answers are bounded all the same,
// and the node is served again when it has read them.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perMessage, messages = 256, 100
		full := admission.NewEgress(admission.EgressLimits{All: 1})
		full.Admit("y", "", "", 1, 1<<40)
		asks := make([]peer.Ask, perMessage)
		var asking deaf
		asking.Reset(append(bytes.Repeat(said(peer.AppendAsks(nil, asks)), messages), 4, 0, 0, 0, 3, 0, 0, 0, 0))
		l := &answering{
			server: &Server{egress: full}, conn: peer.Accept(&asking, nil),
			ready: make(chan struct{}, 1), sent: make(chan struct{}, 1), doing: make(chan []peers.Progress, 1),
		}
		ended := make(chan error, 1)
		go func() { ended <- l.receive(t.Context(), nil) }()
		answers := 0
		for over := false; !over; {
			synctest.Wait()
			l.mu.Lock()
			n := len(l.answers)
			l.mu.Unlock()
			if n > mostUnsent {
				t.Fatalf("%d answers wait to be sent, want %d at most", n, mostUnsent)
			}
			taken := len(l.take())
			answers, over = answers+taken, taken == 0
		}
		if err := <-ended; err != nil || answers != perMessage*messages {
			t.Errorf("%d answers to %d asks, %v", answers, perMessage*messages, err)
		}
	})
}

// A ticket is sent once: if a list replaces an unread one with a ticket, the ticket is
// not lost.
func TestTicketsOutliveTheirList(t *testing.T) {
	older := []peers.Progress{{ID: 1, Ticket: json.RawMessage(`{"rank":1}`), Index: 5},
		{ID: 2, Ticket: json.RawMessage(`{"rank":2}`)}, {ID: 3}}
	list := []peers.Progress{{ID: 1, Index: 9}, {ID: 3, Index: 7}, {ID: 4, Ticket: json.RawMessage(`{"rank":4}`)}}
	keepTickets(list, older)
	for i, want := range []string{`{"rank":1}`, "", `{"rank":4}`} {
		if got := string(list[i].Ticket); got != want {
			t.Errorf("stream %d has ticket %q, want %q", list[i].ID, got, want)
		}
	}
	if list[0].Index != 9 {
		t.Errorf("stream 1 is at %d, want 9", list[0].Index)
	}
}

// A malformed message on a connection between nodes ends the connection, and takes no
// memory beyond the bytes that were sent.
func TestHostileBytesBetweenNodes(t *testing.T) {
	// Each connection that lacks a part stays for RequestTimeout, and a busy machine has to make that of a node in it.
	f := serve(t, Options{RequestTimeout: 500 * time.Millisecond,
		Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey)}})
	frame := func(n uint32, kind byte, rest string) string {
		return string(append(binary.LittleEndian.AppendUint32(nil, n), kind)) + rest
	}
	method := string(said([]byte(peer.ReadMethod)))
	for name, sent := range map[string]string{
		"nothing":                 "",
		"half a preface":          peer.Preface[:7],
		"another preface":         strings.Replace(peer.Preface, "1", "2", 1) + method,
		"a preface":               peer.Preface,
		"half a head":             peer.Preface + "\x01\x00",
		"a huge method":           peer.Preface + frame(1<<31, 0, "x"),
		"half a method":           peer.Preface + frame(10, 0, "/bow"),
		"another method":          peer.Preface + string(said([]byte("/bowstring.Peers/Take"))),
		"another kind":            peer.Preface + frame(1, 9, "x"),
		"a long ping":             peer.Preface + frame(1<<30, 1, "x"),
		"a huge end":              peer.Preface + frame(1<<30, 3, "x"),
		"a hello of 4 GiB":        peer.Preface + method + frame(1<<32-1, 0, "{"),
		"a hello that is long":    peer.Preface + method + frame(peer.MaxHello+1, 0, "{"),
		"half a hello":            peer.Preface + method + frame(100, 0, `{"node":`),
		"no hello":                peer.Preface + method,
		"the end in place of one": peer.Preface + method + frame(4, 3, "\x00\x00\x00\x00"),
		"pings for a hello":       peer.Preface + method + strings.Repeat(frame(0, 1, ""), 1000),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		conn, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, sent); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		var timeout net.Error
		if _, err := io.Copy(io.Discard, conn); errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: the connection stays", name)
		}
		_ = conn.Close()
		runtime.ReadMemStats(&after)
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s: %d bytes were allocated", name, took)
		}
	}
	var other peer.Hello
	err := errors.New("none was asked")
	for try := 0; try < 20 && err != nil; try++ {
		other, err = introduce(f.reader(), peer.ReadMethod, peer.NewKeys(clusterKey), peer.Hello{Node: "x"})
	}
	if err != nil || other.Node != "b" {
		t.Errorf("a node, after that: %+v, %v", other, err)
	}
}
