package flight

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"strings"
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
	"bowstring/flight/door"
	"bowstring/flight/peering"
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

// lender opens a stream as another node would, with those headers.
func (f *fixture) lender(how []grpc.DialOption, headers ...string) grpc.ClientStream {
	f.t.Helper()
	stream, _ := f.lenderToCancel(how, headers...)
	return stream
}

func (f *fixture) lenderToCancel(how []grpc.DialOption, headers ...string) (grpc.ClientStream, context.CancelFunc) {
	f.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+f.addr,
		append(how, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2("proto")})))...)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), headers...))
	f.t.Cleanup(cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, lendMethod)
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
	b, err := json.Marshal(peering.Hello{Node: "x", Protocols: protocols})
	if err != nil {
		panic(err)
	}
	return b
}

// Where there are rules, a cluster without a key lets nobody in. Whoever guesses keys is
// told no more, and no more often, than who guesses tokens.
func TestLendIsGuarded(t *testing.T) {
	r := serveRules(t, "rules: []", Options{Cluster: &Cluster{Node: "b"}})
	if got, err := say(t, r.lender(r.how), helloOf(peering.Protocol)); status.Code(err) != codes.Unauthenticated ||
		len(got) > 0 {
		t.Errorf("without a key, beside rules: %d messages came, and %v", len(got), err)
	}
	d := newDoors(t, func(o *door.Options) { o.WrongBurst, o.WrongPerMinute = 3, 1 })
	f := serve(t, Options{Door: d.door, Cluster: &Cluster{Node: "b", Key: clusterKey}}, d.trust(nil, nil))
	for i := range 6 {
		_, err := say(t, f.lender(f.how, "authorization", "Bearer guess"), helloOf(peering.Protocol))
		want := codes.Unauthenticated
		if i >= 3 {
			want = codes.ResourceExhausted
		}
		if status.Code(err) != want || strings.Contains(err.Error(), "cluster") {
			t.Errorf("guess %d: %v, want %s", i, err, want)
		}
	}
	if got, err := say(t, f.lender(f.how, "authorization", "Bearer "+string(clusterKey)),
		helloOf(peering.Protocol)); !errors.Is(err, io.EOF) || len(got) != 1 {
		t.Errorf("the key, after guesses: %d messages, %v", len(got), err)
	}
}

// Nobody reads by way of a server as another node would but who has the cluster's key: not even who may do everything.
func TestLendWrongWays(t *testing.T) {
	d := newDoors(t, nil)
	f := serve(t, Options{Door: d.door, Cluster: &Cluster{Node: "b", Key: clusterKey}}, d.trust(nil, nil))
	token := d.token(door.Token{Principal: "admin"})
	ask := peering.AppendAsks(nil, []peering.Ask{{ID: 1, Ask: peers.Ask{Ref: schema.RefOf(content(1))}}})
	for name, headers := range map[string][]string{
		"nothing":        nil,
		"another key":    {"authorization", "Bearer " + strings.Repeat("x", len(clusterKey))},
		"no scheme":      {"authorization", string(clusterKey)},
		"another scheme": {"authorization", "Basic " + string(clusterKey)},
		"twice":          {"authorization", "Bearer " + string(clusterKey), "authorization", "Bearer x"},
		"a part":         {"authorization", "Bearer " + string(clusterKey[:10])},
		"nothing of it":  {"authorization", "Bearer "},
		"a caller's":     {"authorization", "Bearer " + token},
		"another header": {"bowstring-cluster", string(clusterKey)},
	} {
		got, err := say(t, f.lender(f.how[:len(f.how):len(f.how)], headers...), helloOf(peering.Protocol), ask)
		if status.Code(err) != codes.Unauthenticated || len(got) > 0 {
			t.Errorf("%s: %d messages came, and %v; want none, and UNAUTHENTICATED", name, len(got), err)
		}
		if err != nil && strings.Contains(err.Error(), string(clusterKey)) {
			t.Errorf("%s: the key is in the error", name)
		}
	}
	if strings.Contains(f.log.String()+d.log.String(), string(clusterKey)) {
		t.Error("the key is in the log")
	}
	if got, err := say(t, f.lender(f.how, "authorization", "Bearer "+string(clusterKey)),
		helloOf(peering.Protocol)); !errors.Is(err, io.EOF) || len(got) != 1 {
		t.Errorf("with the key: %d messages came, and %v; want a hello, and the end", len(got), err)
	}
	// The key opens that door alone.
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+string(clusterKey))
	if _, err := f.client.GetFlightInfo(ctx, path("d", "train")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the cluster's key as a caller's token: %v, want UNAUTHENTICATED", err)
	}
}

// A server that is in no cluster has no such method.
func TestLendAlone(t *testing.T) {
	f := serve(t, Options{})
	if got, err := say(t, f.lender(f.how), helloOf(peering.Protocol)); status.Code(err) != codes.Unimplemented ||
		len(got) > 0 {
		t.Errorf("%d messages came, and %v; want none, and UNIMPLEMENTED", len(got), err)
	}
}

// What a node says wrong ends its stream with what is wrong, and harms nothing.
func TestLendHostile(t *testing.T) {
	f := serve(t, Options{Cluster: &Cluster{Node: "b"}})
	hello := helloOf(peering.Protocol)
	asks := peering.AppendAsks(nil, []peering.Ask{{ID: 1, Ask: peers.Ask{Ref: schema.RefOf(content(1))}}})
	for name, messages := range map[string][][]byte{
		"no hello":             {asks},
		"another protocol":     {helloOf(99)},
		"no protocol":          {helloOf()},
		"nothing":              {hello, nil},
		"another kind":         {hello, []byte("z")},
		"half an ask":          {hello, asks[:len(asks)-1]},
		"more than it says":    {hello, append(asks[:len(asks):len(asks)], 0)},
		"names without an end": {hello, {peering.KindAsks, 255, 255}},
		"progress":             {hello, append([]byte{peering.KindProgress}, "{}"...)},
		"progress, cut":        {hello, append([]byte{peering.KindProgress}, `[{"id":1`...)},
		"a blob too large": {hello, peering.AppendAsks(nil,
			[]peering.Ask{{Ask: peers.Ask{Ref: schema.BlobRef{Size: peers.MaxBlob + 1}}}})},
		"a position too small": {hello, peering.AppendAsks(nil, []peering.Ask{{Ask: peers.Ask{Position: -1}}})},
	} {
		if _, err := say(t, f.lender(f.how), messages...); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
	of := serve(t, Options{Cluster: &Cluster{Name: "mine", Node: "b"}})
	for name, code := range map[string]codes.Code{"mine": codes.OK, "": codes.OK, "other": codes.InvalidArgument} {
		hello, err := json.Marshal(peering.Hello{Cluster: name, Node: "x", Protocols: []int{peering.Protocol}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = say(t, of.lender(of.how), hello)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != code {
			t.Errorf("a node of cluster %q: %v, want %s", name, err, code)
		}
	}
	// Streams that there cannot be are not followed, and the way stays.
	progress := append([]byte{peering.KindProgress}, `[{"id":1,"ticket":{"dataset":"none"}},{"id":2,"ticket":17}]`...)
	if got, err := say(t, f.lender(f.how), hello, progress, asks); !errors.Is(err, io.EOF) || len(got) < 1 {
		t.Errorf("after progress of streams that there cannot be, %d messages and %v; want a hello and the end",
			len(got), err)
	}
}

// A node of an older version is answered as it understands: with the protocol that it speaks, and no status that it
// does not know. One that asks for what is held gets nothing else.
func TestLendAcrossVersions(t *testing.T) {
	full := admission.NewEgress(admission.EgressLimits{Zones: map[string]int64{"far": 1}})
	full.Admit("y", "far", "", 1, 1<<20)
	f := serve(t, Options{Cluster: &Cluster{Node: "b", Egress: full}})
	f.fill("d", 10)
	asks := []peering.Ask{{ID: 1, Ask: peers.Ask{Ref: schema.RefOf(content(1))}}}
	far := func(protocols ...int) []byte {
		b, err := json.Marshal(peering.Hello{Node: "y", Zone: "far", Protocols: protocols})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	held := []peering.Ask{{ID: 1, Ask: peers.Ask{Ref: schema.RefOf(content(1)), Held: true}}}
	for name, test := range map[string]struct {
		hello, ask []byte
		protocol   int
		status     peering.Status
	}{
		"an old one":               {helloOf(1), peering.AppendAsks(nil, asks), 1, peering.Here},
		"a new one":                {helloOf(2, 1), peering.AppendFlagged(nil, asks), 2, peering.Here},
		"a newer one":              {helloOf(3, 2), peering.AppendFlagged(nil, asks), 2, peering.Here},
		"for what is held":         {helloOf(2), peering.AppendFlagged(nil, held), 2, peering.NotHeld},
		"an old one, of a full":    {far(1), peering.AppendAsks(nil, asks), 1, peering.Failed},
		"a new one, of a full one": {far(2), peering.AppendFlagged(nil, asks), 2, peering.Full},
	} {
		stream := f.lender(f.how)
		for _, m := range [][]byte{test.hello, test.ask} {
			if err := stream.SendMsg(&wrapperspb.BytesValue{Value: m}); err != nil {
				t.Fatal(err)
			}
		}
		var first, second raw
		var hello peering.Hello
		err := errors.Join(stream.RecvMsg(&first), stream.RecvMsg(&second))
		for err == nil && binary.LittleEndian.Uint32(second) == 0 { // it says only that it is there
			err = stream.RecvMsg(&second)
		}
		if err == nil {
			err = json.Unmarshal(first, &hello)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(hello.Protocols) != 1 || hello.Protocols[0] != test.protocol {
			t.Errorf("%s: the protocol is %v, want %d", name, hello.Protocols, test.protocol)
		}
		if got := peering.Status(binary.LittleEndian.Uint32(second[8:])); got != test.status {
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
	stream, cancel := f.lenderToCancel(f.how)
	if err := stream.SendMsg(&wrapperspb.BytesValue{Value: helloOf(peering.Protocol)}); err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{})
	go func() { // until it is read from no further
		defer close(asked)
		for id := uint32(0); id < 20_000; {
			asks := make([]peering.Ask, 200)
			for i := range asks {
				id++
				asks[i] = peering.Ask{ID: id, Ask: peers.Ask{Ref: schema.RefOf(content(int(id) % 1000))}}
			}
			if err := stream.SendMsg(&wrapperspb.BytesValue{Value: peering.AppendAsks(nil, asks)}); err != nil {
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
		asks := make([]peering.Ask, perMessage)
		l := &lending{
			server: &Server{egress: full}, ss: &deaf{message: peering.AppendFlagged(nil, asks), left: messages},
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
