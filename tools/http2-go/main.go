// N requests under way on one connection of HTTP/2 over cleartext, until COUNT are done: CPU time per request of Go's
// net/http. The example `streams` of crates/client does the same.
//
//	go build -o http2-go . && ./http2-go http://127.0.0.1:8080/index.html 1000 200000
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: http2-go URL N COUNT")
	}
	atOnce, count := number(os.Args[2]), number(os.Args[3])
	client := http.Client{Transport: transport()}
	get := func() {
		response, err := client.Get(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		if response.StatusCode != 200 || response.ProtoMajor != 2 {
			log.Fatal(response.Proto, " ", response.Status)
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			log.Fatal(err)
		}
		response.Body.Close()
	}
	get()
	before := cpu()
	var left atomic.Int64
	left.Store(count)
	var group sync.WaitGroup
	for range atOnce {
		group.Add(1)
		go func() {
			defer group.Done()
			for left.Add(-1) >= 0 {
				get()
			}
		}()
	}
	group.Wait()
	fmt.Printf("%.2f us of CPU per request\n", float64(cpu()-before)/1e3/float64(count))
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return value
}

// Returns the CPU time of the process in nanoseconds.
func cpu() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		log.Fatal(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

// Returns a transport that speaks HTTP/2 alone, without TLS.
func transport() *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{Protocols: &protocols}
}
