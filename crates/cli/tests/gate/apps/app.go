// The application of the peers' tests in Go: says what it has read of a request.
//
//	app LOG SOCKET
//
// Each request that was read to its end is a line in LOG, written before it is answered: method, target, length of the body. The answer
// has the same in X-Read, the trailers in X-Trailers, and the body itself. A WebSocket is opened, and sends back what comes.
package main

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sort"
	"strings"
)

var log *os.File

func answer(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	read := fmt.Sprintf("%s %s %d", r.Method, r.RequestURI, len(body))
	fmt.Fprintln(log, read)
	if key := r.Header.Get("Sec-WebSocket-Key"); key != "" && r.Header.Get("Upgrade") != "" {
		upgrade(w, key)
		return
	}
	var trailers []string
	for name, values := range r.Trailer {
		trailers = append(trailers, name+"="+strings.Join(values, ","))
	}
	sort.Strings(trailers)
	w.Header().Set("X-Read", read)
	w.Header().Set("X-Trailers", strings.Join(trailers, ";"))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Write(body)
}

func upgrade(w http.ResponseWriter, key string) {
	connection, buffered, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer connection.Close()
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	fmt.Fprintf(connection, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	io.Copy(connection, buffered)
}

func listen(network, address string) net.Listener {
	listener, err := net.Listen(network, address)
	if err != nil {
		panic(err)
	}
	return listener
}

func main() {
	var err error
	if log, err = os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		panic(err)
	}
	unix, tcp := listen("unix", os.Args[2]), listen("tcp", "127.0.0.1:0")
	server := &http.Server{Handler: http.HandlerFunc(answer)}
	go server.Serve(unix)
	fmt.Println("listening on", tcp.Addr())
	server.Serve(tcp)
}
