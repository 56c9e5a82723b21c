package flight

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/fetch/admission"
	"bowstring/fetch/peers"
	"bowstring/flight/peer"
	"bowstring/schema"
)

var clusterKey = []byte("what the nodes of a test have in common")

// raw is a message as it came.
type raw []byte

type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if m, ok := v.(*raw); ok {
		*m = data.Materialize()
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// lender opens a stream as another node would.
func (f *fixture) lender() grpc.ClientStream { return f.callOf(lendMethod) }

// callOf opens a call of a method, with those headers. It ends with the test.
func (f *fixture) callOf(method string, headers ...string) grpc.ClientStream {
	f.t.Helper()
	stream, _ := f.callToCancel(method, headers...)
	return stream
}

func (f *fixture) callToCancel(method string, headers ...string) (grpc.ClientStream, context.CancelFunc) {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+f.addr, append(f.how[:len(f.how):len(f.how)],
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto")})))...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), headers...))
	f.t.Cleanup(cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		f.t.Fatal(err)
	}
	return stream, cancel
}

// say sends messages and returns what came back, up to the end.
func say(t *testing.T, stream grpc.ClientStream, messages ...[]byte) (got []raw, err error) {
	t.Helper()
	for _, m := range messages {
		if err := stream.SendMsg(&wrapperspb.BytesValue{Value: m}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		var m raw
		if err := stream.RecvMsg(&m); err != nil {
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
func TestLendAlone(t *testing.T) {
	f := serve(t, Options{})
	if got, err := say(t, f.lender(), helloOf(peer.Protocol)); status.Code(err) != codes.Unimplemented ||
		len(got) > 0 {
		t.Errorf("%d messages came, and %v; want none, and UNIMPLEMENTED", len(got), err)
	}
}

// What a node says wrong ends its stream with what is wrong, and harms nothing.
func TestLendHostile(t *testing.T) {
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
		if _, err := say(t, f.lender(), messages...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	of := serve(t, Options{Cluster: &Cluster{Name: "mine", Node: "b"}})
	for name, code := range map[string]codes.Code{"mine": codes.OK, "": codes.OK, "other": codes.InvalidArgument} {
		hello, err := json.Marshal(peer.Hello{Cluster: name, Node: "x", Protocols: []int{peer.Protocol}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = say(t, of.lender(), hello)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != code {
			t.Errorf("a node of cluster %q: %v, want %s", name, err, code)
		}
	}
	// Streams that there cannot be are not followed, and the way stays.
	progress := append([]byte{peer.KindProgress}, `[{"id":1,"ticket":{"dataset":"none"}},{"id":2,"ticket":17}]`...)
	if got, err := say(t, f.lender(), hello, progress, asks); !errors.Is(err, io.EOF) || len(got) < 1 {
		t.Errorf("after progress of streams that there cannot be, %d messages and %v; want a hello and the end",
			len(got), err)
	}
}

// A node is answered with the newest protocol that both speak, and that its asks want: one that asks for what is held
// gets nothing else.
func TestLendStatuses(t *testing.T) {
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
		stream := f.lender()
		other, err := introduce(stream, lendMethod, nil, peer.Hello{Node: "y", Zone: test.zone})
		if err != nil || !slices.Equal(other.Protocols, []int{peer.Protocol}) {
			t.Fatalf("%s: %+v, %v", name, other, err)
		}
		if err := stream.SendMsg(&wrapperspb.BytesValue{Value: test.ask}); err != nil {
			t.Fatal(err)
		}
		var m raw
		err = stream.RecvMsg(&m)
		for err == nil && binary.LittleEndian.Uint32(m) == 0 { // it says only that it is there
			err = stream.RecvMsg(&m)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := peer.Status(binary.LittleEndian.Uint32(m[8:])); got != test.status {
			t.Errorf("%s: the answer has status %d, want %d", name, got, test.status)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
	}
}

// Who asks for much and takes nothing has the memory that loans have, and no more; when it goes, that is free.
func TestLendToADeafNode(t *testing.T) {
	f := serve(t, Options{Cluster: &Cluster{Node: "b"}})
	f.fill("d", 1000)
	stream, cancel := f.callToCancel(lendMethod)
	if err := stream.SendMsg(&wrapperspb.BytesValue{Value: helloOf(peer.Protocol)}); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() { // until it is read from no further
		defer close(asked)
		for id := uint32(0); id < 20_000; {
			asks := make([]peer.Ask, 200)
			for i := range asks {
				id++
				asks[i] = peer.Ask{ID: id, Ask: peers.Ask{Ref: schema.RefOf(content(int(id) % 1000))}}
			}
			if err := stream.SendMsg(&wrapperspb.BytesValue{Value: peer.AppendAsks(nil, asks)}); err != nil {
				return
			}
		}
	}()
	loans := func() (used, limit int64) {
		for _, a := range f.engine.Ledger().Accounts() {
			if a.Use == "blobs for other nodes" {
				return a.Used, a.Limit
			}
		}
		t.Fatal("the ledger has no loans")
		return 0, 0
	}
	waitFor(t, "loans", func() bool { used, _ := loans(); return used > 0 })
	if used, limit := loans(); used > limit {
		t.Errorf("loans take %d bytes of %d", used, limit)
	}
	cancel() // it goes
	<-asked
	waitFor(t, "loans to end", func() bool { used, _ := loans(); return used == 0 })
}

// deaf is the stream of a node that asks for much and reads nothing.
type deaf struct {
	grpc.ServerStream
	message []byte
	left    int
}

func (d *deaf) RecvMsg(m any) error {
	if d.left--; d.left < 0 {
		return io.EOF
	}
	m.(*wrapperspb.BytesValue).Value = d.message
	return nil
}

// What is refused takes no loan's memory: answers that are not read are bounded all the same, and the node is read from
// again when it has read them.
func TestRefusalsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const perMessage, messages = 256, 100
		full := admission.NewEgress(admission.EgressLimits{All: 1})
		full.Admit("y", "", "", 1, 1<<40)
		asks := make([]peer.Ask, perMessage)
		l := &lending{
			server: &Server{egress: full}, ss: &deaf{message: peer.AppendAsks(nil, asks), left: messages},
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

// A ticket is told once: a list that comes before the one with it was looked at does not lose it.
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
