package admin

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Named reports whether a request names this server by a name that is its own: an address,
// localhost, the machine's name or one of hosts. A page of somebody else's can have its own
// name lead to this address (DNS rebinding) and then read what is answered, but not change
// the name that the browser asks for. Over TLS the browser has compared it with the
// certificate.
func Named(r *http.Request, hosts []string) bool {
	host := strings.ToLower(hostOf(r.Host))
	if r.TLS != nil || host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	own, err := os.Hostname()
	return err == nil && host == strings.ToLower(own) || slices.ContainsFunc(hosts, func(h string) bool {
		return strings.EqualFold(h, host)
	})
}

// named answers only requests that name this server.
func (s *Server) named(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Named(r, s.opts.Hosts) {
			say(w, http.StatusForbidden, fmt.Sprintf("this server is not known to be called %.200q: ask by its "+
				"address, or have --admin-host name it", hostOf(r.Host)))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// hostOf is an address without its port.
func hostOf(addr string) string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	return strings.Trim(host, "[]")
}
