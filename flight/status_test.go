package flight

import (
	"net"
	"testing"

	"google.golang.org/grpc/metadata"
)

// A viewer sees in a Status what the action stats would show it, and nothing of others.
func TestViewersSee(t *testing.T) {
	r := wrongServer(t)
	plan, end := r.as("bob").streaming(`{"dataset": "` + hiddenDataset +
		`", "batch": 1, "batch_bytes": 1, "rank": 0, "epochs": 1000}`)
	defer end()
	viewer := func(who string) *Viewer {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("test-principal", who)) // see serveRules
		v, err := r.server.NewViewer(ctx, "", &net.TCPAddr{}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(v.Leave)
		return v
	}
	alice, bob, root := viewer("alice"), viewer("bob"), viewer("root")
	l := r.server.Status()
	if s := root.Visible(l); !s.All || len(s.Streams) != 1 || len(s.More) != 1 || s.Streams[0].Plan != plan ||
		s.More[0].Dataset != hiddenDataset || s.Server.Calls == 0 {
		t.Errorf("root sees %+v", s)
	}
	if s := bob.Visible(l); s.All || len(s.Streams) != 1 || s.Server.Calls != 1 || s.Engine.Streams != 0 ||
		len(s.Tenants) != 0 || len(s.Engine.Windows) != 0 {
		t.Errorf("bob sees %+v", s)
	}
	if s := alice.Visible(l); s.All || len(s.Streams) != 0 || len(s.More) != 0 || s.Server.Calls != 0 ||
		s.Server.Bytes != 0 || s.Engine.Streams != 0 || s.Engine.WindowLimit != 0 {
		t.Errorf("alice sees %+v", s)
	}
}
