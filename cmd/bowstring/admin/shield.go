package admin

import (
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
)

// shield answers a request whose handler panics: the client gets an id, the log the id, the text and the stack.
// net/http alone would close the connection, and log at the level of clients that hang up.
func (s *Server) shield(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(p)
			}
			id := rand.Text()
			s.opts.Logger.LogAttrs(r.Context(), slog.LevelError, "panic in a request", slog.String("id", id),
				slog.String("path", r.URL.Path), slog.String("panic", fmt.Sprint(p)),
				slog.String("stack", string(debug.Stack())))
			say(w, http.StatusInternalServerError, "a defect of the server; its log says more under the id "+id)
		}()
		h.ServeHTTP(w, r)
	})
}
