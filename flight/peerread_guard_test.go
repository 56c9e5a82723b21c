package flight

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"bowstring/fetch/peers"
	"bowstring/flight/auth"
	"bowstring/flight/peer"
	"bowstring/schema"
)

// introduce has a reader meet the server.
func introduce(call *reader, method string, keys *peer.Keys, hello peer.Hello) (peer.Hello, error) {
	guest := peer.Guest{Hello: hello, Keys: keys}
	other, _, err := guest.Meet(call.Way(method))
	return other, err
}

// If there are rules, a server of a cluster without a key accepts no node. A client that
// guesses keys learns no more, and no more often, than one that guesses tokens.
func TestPeerReadsIsGuarded(t *testing.T) {
	r := serveRules(t, "rules: []", Options{Cluster: &Cluster{Node: "b"}})
	if got, err := say(t, r.reader(), helloOf(peer.Protocol)); status.Code(err) != codes.Unauthenticated ||
		len(got) > 0 {
		t.Errorf("without a key, beside rules: %d messages came, and %v", len(got), err)
	}
	d := newLogins(t, func(o *auth.Options) { o.WrongBurst, o.WrongPerMinute = 3, 1 })
	f := serve(t, Options{Auth: d.auth, Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey)}},
		d.trust(nil, nil))
	guess := peer.NewKeys([]byte("guess"))
	for i := range 6 {
		_, err := introduce(f.callOf(peer.ReadMethod, d.client(nil)), peer.ReadMethod, guess, peer.Hello{Node: "x"})
		want := codes.Unauthenticated
		if i >= 3 {
			want = codes.ResourceExhausted
		}
		if status.Code(err) != want || strings.Contains(err.Error(), "cluster") {
			t.Errorf("guess %d: %v, want %s", i, err, want)
		}
	}
	other, err := introduce(f.callOf(peer.ReadMethod, d.client(nil)), peer.ReadMethod, peer.NewKeys(clusterKey),
		peer.Hello{Node: "x"})
	if err != nil || other.Node != "b" {
		t.Errorf("the key, after guesses: %+v, %v", other, err)
	}
}

// Only a node that proves to know the cluster's key can read from a server as a node, or
// have it warm. A caller with every right cannot, nor can one that sends the key itself,
// as nodes of older versions do.
func TestPeerReadsWrongWays(t *testing.T) {
	d := newLogins(t, nil)
	f := serve(t, Options{Auth: d.auth, Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey)}},
		d.trust(nil, nil))
	token := d.token(auth.Token{Principal: "admin"})
	byGRPC, err := grpc.NewClient("passthrough:///"+f.addr, f.how...)
	if err != nil {
		t.Fatal(err)
	}
	defer byGRPC.Close()
	for _, method := range []string{peer.ReadMethod, peer.WarmMethod} {
		for name, key := range map[string][]byte{
			"nothing":              nil,
			"another key":          []byte(strings.Repeat("x", len(clusterKey))),
			"a part":               clusterKey[:10],
			"a caller's for one":   []byte(token),
			"another one, guessed": []byte("guess"),
		} {
			var keys *peer.Keys
			if key != nil {
				keys = peer.NewKeys(key)
			}
			_, err := introduce(f.callOf(method, d.client(nil)), method, keys, peer.Hello{Node: "x"})
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s, %s: %v, want UNAUTHENTICATED", method, name, err)
			}
			if err != nil && strings.Contains(err.Error(), string(clusterKey)) {
				t.Errorf("%s, %s: the key is in the error", method, name)
			}
		}
		hello, err := json.Marshal(peer.Hello{Node: "x", Protocols: []int{peer.Protocol}, Nonce: make([]byte, 32)})
		if err != nil {
			t.Fatal(err)
		}
		for name, proof := range map[string][]byte{
			"the key itself": append([]byte{peer.KindProof}, clusterKey...),
			"a token":        append([]byte{peer.KindProof}, token...),
		} {
			got, err := say(t, f.callOf(method, d.client(nil)), hello, proof)
			if status.Code(err) != codes.Unauthenticated || len(got) != 1 {
				t.Errorf("%s, %s for a proof: %d messages, %v", method, name, len(got), err)
			}
		}
		// A node of another protocol version gets no answer that it could use.
		if got, err := say(t, f.callOf(method, d.client(nil)), helloOf(2, 3)); status.Code(err) != codes.InvalidArgument ||
			len(got) > 0 {
			t.Errorf("%s, another protocol: %d messages, %v", method, len(got), err)
		}
		if other, err := introduce(f.callOf(method, d.client(nil)), method, peer.NewKeys(clusterKey),
			peer.Hello{Node: "x"}); err != nil || other.Node != "b" {
			t.Errorf("%s, with a proof: %+v, %v", method, other, err)
		}
		// No call of gRPC leads there.
		err = byGRPC.Invoke(t.Context(), method, &wrapperspb.BytesValue{}, &wrapperspb.BytesValue{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("%s by gRPC: %v", method, err)
		}
	}
	if strings.Contains(f.log.String()+d.log.String(), string(clusterKey)) {
		t.Error("the key is in the log")
	}
	// The key gives access to that service only.
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+string(clusterKey))
	if _, err := f.client.GetFlightInfo(ctx, path("d", "train")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the cluster's key as a caller's token: %v, want UNAUTHENTICATED", err)
	}
}

// A proof is valid for one connection: a program that relays by TLS the messages that a
// node sends it by TLS is refused, and learns nothing that would help it.
func TestPeerReadsIsNotPassedOn(t *testing.T) {
	d := newLogins(t, nil)
	f := serve(t, Options{Auth: d.auth, Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey)}},
		d.trust(nil, nil))
	way := f.callOf(peer.ReadMethod, d.client(nil)).Way(peer.ReadMethod)
	way.Binding = []byte("of the connection to who passes it on")
	guest := peer.Guest{Hello: peer.Hello{Node: "x", Other: "b"}, Keys: peer.NewKeys(clusterKey)}
	_, _, err := guest.Meet(way)
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("what was passed on: %v, want UNAUTHENTICATED", err)
	}
	// Without TLS, the address that the node has dialled is checked.
	plain := serve(t, Options{Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey),
		Address: func() string { return "10.0.0.1:8815" }}})
	for address, code := range map[string]codes.Code{"10.0.0.9:8815": codes.InvalidArgument, "10.0.0.1:8815": codes.OK,
		"": codes.OK} {
		_, err := introduce(plain.reader(), peer.ReadMethod, peer.NewKeys(clusterKey),
			peer.Hello{Node: "x", Address: address})
		if status.Code(err) != code {
			t.Errorf("a node that has dialled %q: %v, want %s", address, err, code)
		}
	}
}

// A node has RequestTimeout to prove that it knows the key, as any call has for its
// request.
func TestProofInTime(t *testing.T) {
	hello, err := json.Marshal(peer.Hello{Node: "x", Protocols: []int{peer.Protocol}, Nonce: make([]byte, 32)})
	if err != nil {
		t.Fatal(err)
	}
	// On a busy machine the hello itself may come too late. The call is made again then, with more time.
	for timeout := 50 * time.Millisecond; ; timeout *= 8 {
		f := serve(t, Options{RequestTimeout: timeout, Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey)}})
		call := f.reader()
		err := call.Send(hello)
		messages := 0
		for err == nil {
			if _, err = call.receive(); err == nil {
				messages++
			}
		}
		if messages == 0 && timeout < 10*time.Second {
			continue
		}
		if status.Code(err) != codes.ResourceExhausted || messages != 1 {
			t.Errorf("%d messages came, and %v; want one, and RESOURCE_EXHAUSTED", messages, err)
		}
		return
	}
}

// With TLS and the key, nodes read from each other and make each other warm. A node with
// another key can do neither.
func TestPeerReadsByTLS(t *testing.T) {
	d := newLogins(t, nil)
	token := d.token(auth.Token{Principal: "somebody"})
	d.await(func() bool { return d.known(token) })
	f := serve(t, Options{Auth: d.auth, Cluster: &Cluster{Name: "c", Node: "b", Keys: peer.NewKeys(clusterKey)}},
		d.trust(nil, nil), grpc.WithPerRPCCredentials(withHeaders{"authorization": "Bearer " + token}))
	f.fill("d", 10)
	dial := func(secret []byte) *peer.Link {
		link, err := peer.Dial(f.addr, peer.Options{Cluster: "c", Node: "a", Other: "b", TLS: d.client(nil),
			Keys: peer.NewKeys(secret), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := link.Close(); err != nil {
				t.Error(err)
			}
		})
		return link
	}
	link := dial(clusterKey)
	waitFor(t, "a way by TLS", link.Up)
	if !link.Secure() {
		t.Error("a way by TLS, with a key, is not secure")
	}
	b, err := link.Get(t.Context(), peers.Ask{Ref: schema.RefOf(content(1))})
	if err != nil || !bytes.Equal(b.Bytes(), content(1)) {
		t.Errorf("a blob by TLS: %v", err)
	}
	b.Release()
	var said []byte
	err = link.Warm(t.Context(), peer.Warm{Request: schema.Request{Dataset: "d", Snapshot: 1}.Marshal()},
		func(b []byte) { said = b })
	// The server has no spill to warm, so it has understood the request.
	if err == nil || !strings.Contains(err.Error(), "spill") {
		t.Errorf("warming by TLS: %v, %s", err, said)
	}
	before := d.auth.Stats().Refused
	wrong := dial([]byte("another key"))
	waitFor(t, "a refusal", func() bool { return d.auth.Stats().Refused > before })
	if _, err := wrong.Get(t.Context(), peers.Ask{Ref: schema.RefOf(content(1))}); err == nil || wrong.Up() {
		t.Errorf("with another key: %v", err)
	}
}
