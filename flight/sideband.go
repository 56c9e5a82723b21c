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
	// ringHeader is what a call says that has a ring: its name, a slash, and the call's number.
	ringHeader = "bowstring-ring"
	// referencesHeader is what a call says besides that can do with references in place of bytes.
	referencesHeader = "bowstring-references"
)

// sideband returns the ring that a call has named, to be left in the end; nil if it has named none, or one that is gone:
// then all goes by the connection.
func (s *Server) sideband(ctx context.Context) (*shm.Sideband, error) {
	named := metadata.ValueFromIncomingContext(ctx, ringHeader)
	if len(named) == 0 || s.opts.Shm == nil {
		return nil, nil //nolint:nilnil // all goes by the connection
	}
	wants := metadata.ValueFromIncomingContext(ctx, referencesHeader)
	// Rights to rows and columns would not hold for a client that reads whole files.
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
		UID     int    `json:"uid"` // that the socket's program has, as the kernel reports it
		Caller  string `json:"caller"`
		Key     string `json:"key"`
	}{shm.Version, local.Name(), local.Path(), os.Geteuid(), caller, hex.EncodeToString(local.Key(caller))})
	if err != nil {
		return err
	}
	return send(said)
}
