// Go's net/http as one of the clients of experiments/http-clients.toml: N requests at the same moment, each on a connection of its
// own, and one line of JSON about them.
//
//	burst-go URL N
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A request, in ms: from its own start, and from the burst's.
type answer struct {
	own, all float64
	err      error
}

func main() {
	if len(os.Args) != 3 {
		fail("usage: burst-go URL N")
	}
	n, err := strconv.Atoi(os.Args[2])
	if err != nil || n < 1 {
		fail(fmt.Sprintf("N is %q: expected a whole number from 1 up", os.Args[2]))
	}
	before := cpu()
	answers, wall := burst(os.Args[1], n)
	report(answers, wall, cpu()-before)
}

func burst(url string, n int) ([]answer, time.Duration) {
	// As the other clients do: a new connection for each request, which ends with it.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make([]answer, n)
	var all sync.WaitGroup
	start := time.Now()
	for i := range answers {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			begun := time.Now()
			err := get(client, url)
			answers[i] = answer{ms(time.Since(begun)), ms(time.Since(start)), err}
		}(i)
	}
	all.Wait()
	return answers, time.Since(start)
}

func get(client *http.Client, url string) error {
	response, err := client.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("status %s", response.Status)
	}
	return nil
}

func report(answers []answer, wall, spent time.Duration) {
	var own []float64
	var sumOwn, sumAll float64
	for _, answer := range answers {
		if answer.err != nil {
			fmt.Fprintln(os.Stderr, answer.err)
			continue
		}
		own = append(own, answer.own)
		sumOwn += answer.own
		sumAll += answer.all
	}
	n, ok := len(answers), len(own)
	seen := map[string]any{
		"client": "net/http (Go)", "n": n, "ok": ok, "failed": n - ok, "wall_ms": ms(wall),
		"cpu_us_per_request": float64(spent.Microseconds()) / float64(n),
	}
	if ok > 0 {
		sort.Float64s(own)
		seen["mean_ms"] = sumOwn / float64(ok)
		seen["p99_ms"] = own[int(math.Ceil(0.99*float64(ok)))-1]
		seen["max_ms"] = own[ok-1]
		seen["all_mean_ms"] = sumAll / float64(ok)
	}
	line, err := json.Marshal(seen)
	if err != nil {
		fail(err.Error())
	}
	fmt.Println(string(line))
}

// User and system time of this process so far.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err.Error())
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func ms(time time.Duration) float64 {
	return time.Seconds() * 1e3
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, "burst-go:", why)
	os.Exit(2)
}
