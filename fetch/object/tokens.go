package object

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errNoneFound reports that nothing on the machine names credentials.
var errNoneFound = errors.New("no credentials were found")

// tokens are the access tokens of a caller, which a cloud's own library finds and renews.
type tokens struct {
	fixed     string // explicit
	anonymous bool
	// find looks for credentials and returns a function that gets a token; the library
	// caches the token while it is valid. find is called with the first request, as it
	// may use the network.
	find func(ctx context.Context) (func(context.Context) (string, error), error)

	mu      sync.Mutex
	source  func(context.Context) (string, error)
	none    bool      // no credentials were found
	nextTry time.Time // when they are searched for again
}

// get returns a token, or "" if requests are not signed.
func (t *tokens) get(ctx context.Context) (string, error) {
	if t.fixed != "" || t.anonymous {
		return t.fixed, nil
	}
	source, err := t.found(ctx)
	if err != nil || source == nil {
		return "", err
	}
	token, err := source(ctx)
	if errors.Is(err, errNoneFound) {
		// Nothing is configured, and the machine has no identity. A public bucket can be
		// read without a token.
		t.mu.Lock()
		t.none, t.nextTry = true, time.Now().Add(refreshEarly)
		t.mu.Unlock()
		return "", nil
	}
	return token, err
}

// found returns the source of tokens, nil if there is none. The lock is held while find
// runs, so that concurrent first requests search once.
func (t *tokens) found(ctx context.Context) (func(context.Context) (string, error), error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.none && time.Now().Before(t.nextTry) {
		return nil, nil
	}
	if t.source != nil {
		return t.source, nil
	}
	source, err := t.find(ctx)
	switch {
	case errors.Is(err, errNoneFound):
		t.none, t.nextTry = true, time.Now().Add(refreshEarly)
		return nil, nil
	case err != nil:
		return nil, err
	}
	t.source, t.none = source, false
	return source, nil
}

// hint says why a request may have been denied.
func (t *tokens) hint() string {
	if t.anonymous {
		return "the request was not signed, as " + setAnonymous + "=true wants"
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.none {
		return "no credentials were found, so the request was not signed"
	}
	return ""
}
