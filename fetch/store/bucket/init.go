package bucket

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"bowstring/fetch/object"
	"bowstring/fetch/store/protocol"
	"bowstring/schema"
)

// InitOptions configures Init.
type InitOptions struct {
	// Options are the options of Open.
	Options
	// Endpoints are further servers of the same bucket, each as http://HOST:PORT. The
	// proof uses all of them and the URL's own together, because some servers keep
	// conditions at each endpoint but not across several.
	Endpoints []string
}

// Init makes the store under a URL, once the bucket has proven that it keeps conditional
// writes: see [Proof]. An existing store is left as it is. An interrupted Init can be
// repeated. The bucket has to exist; a directory is created.
func Init(ctx context.Context, url string, opts InitOptions) (proof Proof, err error) {
	if dir, ok := strings.CutPrefix(url, "file://"); ok {
		if err := makeDirectory(dir); err != nil {
			return proof, fmt.Errorf("make store: %w", err)
		}
	}
	s, err := reach(ctx, url, opts.Options)
	if err != nil {
		return proof, fmt.Errorf("make store: %w", err)
	}
	defer func() {
		s.end()
		err = errors.Join(err, s.bucket.Close())
	}()
	// A store that exists is left as it is. Its control partition may be missing if an
	// earlier Init was interrupted.
	switch _, err := s.format(ctx); {
	case err == nil:
		if err := protocol.Found(ctx, database{s}); err != nil {
			return proof, fmt.Errorf("make store %s: %w", s, err)
		}
		return proof, nil
	case !errors.Is(err, schema.ErrNotFound):
		return proof, fmt.Errorf("make store: %w", err)
	}
	// The proof uses each endpoint by a connection of its own.
	buckets := []object.Bucket{s.bucket}
	defer func() {
		for _, b := range buckets[1:] {
			err = errors.Join(err, b.Close())
		}
	}()
	for _, endpoint := range opts.Endpoints {
		b, err := atEndpoint(ctx, url, endpoint, opts.Bucket)
		if err != nil {
			return proof, fmt.Errorf("make store %s: endpoint %s: %w", s, endpoint, err)
		}
		buckets = append(buckets, b)
	}
	if proof, err = prove(ctx, buckets, s.prefix+dirProof+rand.Text()+"/"); err != nil {
		return proof, fmt.Errorf("make store %s: %w", s, err)
	}
	return proof, s.make(ctx)
}

// make writes the control partition and then FORMAT, so that a store with FORMAT is
// complete.
func (s *Store) make(ctx context.Context) error {
	data, err := json.Marshal(formatFile{formatName, formatVersion, rand.Text()})
	if err != nil {
		return err
	}
	if err := protocol.Found(ctx, database{s}); err != nil {
		return fmt.Errorf("make store %s: %w", s, err)
	}
	_, outcome, err := s.bucket.Put(ctx, s.key(keyFormat), append(data, '\n'), object.Condition{Absent: true})
	if outcome == object.Made || outcome == object.Moved {
		return nil
	}
	if _, found := s.format(ctx); found == nil {
		return nil // it was made, and the answer lost, or by another
	}
	return fmt.Errorf("make store %s: %w", s, err)
}

// makeDirectory creates the directory of a file URL. Only the owner may read it.
func makeDirectory(path string) error {
	// file://localhost/DIR is the same as file:///DIR.
	path, err := url.PathUnescape(strings.TrimPrefix(path, "localhost"))
	if err != nil {
		return fmt.Errorf("%w: %w", schema.ErrInvalid, err)
	}
	return os.MkdirAll(path, 0o700)
}

// atEndpoint opens the bucket of a URL at another endpoint, with the URL's other
// settings.
func atEndpoint(ctx context.Context, raw, endpoint string, opts object.Options) (object.Bucket, error) {
	place, query, _ := strings.Cut(raw, "?")
	var settings []string
	for part := range strings.SplitSeq(query, "&") {
		if part != "" && !strings.HasPrefix(part, "endpoint=") {
			settings = append(settings, part)
		}
	}
	// The endpoint of the URL is replaced, and its other settings stay.
	settings = append(settings, "endpoint="+url.QueryEscape(endpoint))
	bucket, _, err := object.SplitURL(place + "?" + strings.Join(settings, "&"))
	if err != nil {
		return nil, err
	}
	return object.Open(ctx, bucket, opts)
}
