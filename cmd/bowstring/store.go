package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"reflect"

	"github.com/alecthomas/kong"

	"bowstring/fetch/store"
	"bowstring/fetch/store/cql"
	"bowstring/fetch/store/delay"
	"bowstring/fetch/store/local"
	"bowstring/schema"
)

// StoreCmd is bowstring store.
type StoreCmd struct {
	Init StoreInitCmd `cmd:"" help:"Make the store: its directory, or its keyspace and tables."`
}

// StoreInitCmd is bowstring store init.
type StoreInitCmd struct{}

// Run makes the store that the flags name. One that is there stays as it is.
func (*StoreInitCmd) Run(_ context.Context, app *App) error {
	addr, err := app.ownStore("store init")
	if err != nil {
		return err
	}
	store, err := openStore(addr, true, app.quietLog())
	if err != nil {
		return err
	}
	app.Notef("store %s is ready", addr)
	return store.Close()
}

// ownStore is the address of the store for a command that works on it directly.
func (a *App) ownStore(command string) (string, error) {
	if a.cli.Globals.Store == "" {
		return "", usagef("%s works on a store, not through a server: name it by --store", command)
	}
	return a.cli.Globals.Store, nil
}

// openStore opens the store at addr: a directory, or the address of one in
// Scylla or Cassandra. Without create, a place that holds no store is an error
// rather than a new store, so that a mistyped one is found out.
func openStore(addr string, create bool, log *slog.Logger) (store.Store, error) {
	return openFarStore(addr, create, nil, log)
}

// openFarStore opens a store as openStore does, at the far end of a link if there is one.
func openFarStore(addr string, create bool, link *delay.Link, log *slog.Logger) (store.Store, error) {
	if cql.IsURI(addr) {
		options := cql.Options{Logger: log, Create: create}
		if link != nil {
			options.Dialer = link
		}
		// Not to be interrupted: every step of it has a timeout.
		return cql.Open(context.Background(), addr, options)
	}
	if !create {
		entries, err := os.ReadDir(addr)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("store: %w", err)
		}
		if len(entries) == 0 {
			return nil, fmt.Errorf("%w: there is no store in %s; import or serve makes one, --store names another", schema.ErrNotFound, addr)
		}
	}
	store, err := local.Open(addr, local.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	if link != nil {
		return link.Store(store), nil
	}
	return store, nil
}

// mapStore reads the flag --store: the address of a remote store as it is, and
// anything else as a path.
func mapStore(ctx *kong.DecodeContext, target reflect.Value) error {
	var s string
	if err := ctx.Scan.PopValueInto("store", &s); err != nil {
		return err
	}
	if s != "" && !cql.IsURI(s) {
		s = kong.ExpandPath(s)
	}
	target.SetString(s)
	return nil
}
