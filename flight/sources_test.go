package flight

import (
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"

	"bowstring/flight/auth"
	"bowstring/flight/peer"
)

// A server that cannot read its files of callers accepts no calls and ends those that run,
// until it can.
func TestSourcesCloseTheServer(t *testing.T) {
	t.Parallel()
	sources := auth.NewSources(1, slog.New(slog.DiscardHandler)) // a nanosecond
	f := serve(t, Options{Sources: sources})
	f.fillLarge("big")
	running := f.stalled(t.Context(), `{"dataset": "big", "batch": 4}`)
	rules := sources.Add("the file of rules", true)
	rules.Note(t.Context(), errors.New("permission denied"))
	if !closedNow(sources) {
		t.Fatal("the grace time is not over")
	}
	rules.Note(t.Context(), errors.New("permission denied"))
	const why = "cannot read who may call"
	var err error
	for err == nil {
		_, err = running.Recv()
	}
	wantCode(t, err, codes.Unavailable, why)
	_, err = f.client.GetFlightInfo(t.Context(), path("big"))
	wantCode(t, err, codes.Unavailable, why)
	_, err = f.act("list", "")
	wantCode(t, err, codes.Unavailable, why)
	r, err := grpc_health_v1.NewHealthClient(f.conn()).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Errorf("health: %v, %v", r, err)
	}
	rules.Note(t.Context(), nil)
	if _, err := f.act("list", ""); err != nil {
		t.Error(err)
	}
}

// The same holds for other nodes: the unreadable file may be that of the cluster's keys.
func TestSourcesRefuseNodes(t *testing.T) {
	t.Parallel()
	sources := auth.NewSources(1, slog.New(slog.DiscardHandler)) // a nanosecond
	f := serve(t, Options{Sources: sources, Cluster: &Cluster{Node: "b", Keys: peer.NewKeys(clusterKey)}})
	meet := func() (*reader, error) {
		call := f.reader()
		_, err := introduce(call, peer.ReadMethod, peer.NewKeys(clusterKey), peer.Hello{Node: "a"})
		return call, err
	}
	running, err := meet()
	if err != nil {
		t.Fatal(err)
	}
	keys := sources.Add("the file of keys", true)
	keys.Note(t.Context(), errors.New("permission denied"))
	if !closedNow(sources) {
		t.Fatal("the grace time is not over")
	}
	keys.Note(t.Context(), errors.New("permission denied"))
	_, err = running.receive()
	wantCode(t, err, codes.Unavailable, "cannot read who may call")
	_, err = meet()
	wantCode(t, err, codes.Unavailable, "cannot read who may call")
	keys.Note(t.Context(), nil)
	if _, err := meet(); err != nil {
		t.Error(err)
	}
}

// closedNow waits for the nanosecond to pass.
func closedNow(s *auth.Sources) bool {
	for range 1 << 20 {
		if s.Closed() != nil {
			return true
		}
	}
	return false
}
