package command

import (
	"errors"
	"io"
	"testing"

	"bowstring/schema"
)

// Another server of the cluster is called only if it is as safe as the one that names it.
func TestOtherServersAreAsSafe(t *testing.T) {
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	for _, one := range []struct {
		server, address string
		called          bool
	}{
		{"grpc+tls://a:1", "grpc+tls://b:1", true},
		{"grpc://a:1", "grpc+tls://b:1", true},
		{"grpc://a:1", "grpc://b:1", true},
		{"grpc+tls://a:1", "grpc://b:1", false},
		{"grpc+tls://a:1", "grpc://127.0.0.1:1", false},
		{"grpc+tls://a:1", "https://b:1", false},
		{"grpc+tls://a:1", "grpc+tls://user:x@b:1", false},
	} {
		program, _ := bowstring()
		app := &App{globals: program.Globals, Stdout: io.Discard, Stderr: io.Discard}
		parser, err := program.parser(app)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse([]string{"ls", "--server", one.server}); err != nil {
			t.Fatal(err)
		}
		called := false
		err = app.at(t.Context(), one.address, func(c *client) error {
			called = c.target == one.address
			return nil
		})
		if called != one.called || (err == nil) != one.called || err != nil && !errors.Is(err, schema.ErrInvalid) {
			t.Errorf("from %s to %s: called %v, %v; want %v", one.server, one.address, called, err, one.called)
		}
	}
}
