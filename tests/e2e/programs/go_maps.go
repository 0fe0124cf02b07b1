// go_maps KEYS: maps of Go's own heap that are changed and checked until standard input ends, with
// collections, and memory returned to the kernel. Static: no C.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

func textOf(key, round int) string { return strings.Repeat(strconv.Itoa(key*7919+round), 40) }

func main() {
	keys, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	texts := map[int]string{}
	for key := 0; key < keys; key++ {
		texts[key] = textOf(key, 0)
	}
	over := make(chan bool)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	fmt.Println("ready")
	rounds, wrong := 0, 0
	for running := true; running; {
		for key := 0; key < keys; key++ {
			if texts[key] != textOf(key, rounds) {
				wrong++
			}
			texts[key] = textOf(key, rounds+1)
		}
		rounds++
		if rounds%2 == 0 {
			debug.FreeOSMemory()
		}
		select {
		case <-over:
			running = false
		default:
		}
	}
	fmt.Println("maps", rounds, wrong)
	if wrong > 0 {
		os.Exit(1)
	}
}
