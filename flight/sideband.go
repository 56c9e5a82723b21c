package flight

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"os"

	"google.golang.org/grpc/metadata"

	"bowstring/fetch"
	"bowstring/flight/shm"
)

const (
	// ringHeader names a call's ring: the ring's name, a slash, and the number of the call.
	ringHeader = "bowstring-ring"
	// referencesHeader is sent by clients that accept references to files instead of bytes.
	referencesHeader = "bowstring-references"
)

// sideband returns the ring that a call has named; the caller leaves it at the end. It
// returns nil if the call has named none, or one that no longer exists. All data then uses
// the connection.
func (s *Server) sideband(ctx context.Context) (*shm.Sideband, error) {
	named := metadata.ValueFromIncomingContext(ctx, ringHeader)
	if len(named) == 0 || s.opts.Shm == nil {
		return nil, nil //nolint:nilnil // all goes by the connection
	}
	wants := metadata.ValueFromIncomingContext(ctx, referencesHeader)
	// A client that reads whole files could bypass its rights to rows and columns.
	refers := len(wants) > 0 && s.opts.Rules == nil && s.opts.Tenants == nil
	return s.opts.Shm.Sideband(named[0], fetch.CallerFrom(ctx).Principal, refers)
}

// shm is the action `shm`: it announces the socket at which a client on this machine gets a ring, and
// the key by which both ends of that socket authenticate. It sends nothing if the server has no rings.
func (s actionHandler) shm(ctx context.Context, b []byte, send func([]byte) error) error {
	if err := body(b, &struct{}{}); err != nil {
		return err
	}
	local := s.opts.Shm
	if local == nil {
		return nil
	}
	caller := fetch.CallerFrom(ctx).Principal
	said, err := json.Marshal(struct {
		Version int    `json:"version"`
		Server  string `json:"server"`
		Socket  string `json:"socket"`
		UID     int    `json:"uid"` // of the server's process; the kernel reports it to the client
		Caller  string `json:"caller"`
		Key     string `json:"key"`
	}{shm.Version, local.Name(), local.Path(), os.Geteuid(), caller, hex.EncodeToString(local.Key(caller))})
	if err != nil {
		return err
	}
	return send(said)
}
