// Reads one stretch of a binlog with go-mysql: by its syncer, or by its canal.
//
//	go_mysql syncer|canal HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS
//
// Prints one JSON line: rows, and the seconds and the CPU seconds from the first row to the last.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-mysql-org/go-mysql/canal"
	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

// Clock counts rows and exits at the last one.
type Clock struct {
	wanted, rows, first int
	started             time.Time
	cpu                 float64
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}

func (c *Clock) count(rows int) {
	c.rows += rows
	if c.first == 0 {
		c.first, c.started, c.cpu = c.rows, time.Now(), cpuSeconds()
	}
	if c.rows < c.wanted {
		return
	}
	answer, _ := json.Marshal(map[string]any{
		"rows":        c.rows - c.first,
		"seconds":     time.Since(c.started).Seconds(),
		"cpu_seconds": cpuSeconds() - c.cpu,
	})
	fmt.Println(string(answer))
	os.Exit(0)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	check(err)
	return found
}

func readWithSyncer(server replication.BinlogSyncerConfig, from mysql.Position, clock *Clock) {
	streamer, err := replication.NewBinlogSyncer(server).StartSync(from)
	check(err)
	for {
		event, err := streamer.GetEvent(context.Background())
		check(err)
		if rows, ok := event.Event.(*replication.RowsEvent); ok {
			clock.count(len(rows.Rows))
		}
	}
}

// Handler receives the canal's rows.
type Handler struct {
	canal.DummyEventHandler
	clock *Clock
}

// OnRow counts the rows of one event.
func (h *Handler) OnRow(event *canal.RowsEvent) error {
	h.clock.count(len(event.Rows))
	return nil
}

func readWithCanal(server replication.BinlogSyncerConfig, table string, from mysql.Position, clock *Clock) {
	config := canal.NewDefaultConfig()
	config.Addr = fmt.Sprintf("%s:%d", server.Host, server.Port)
	config.User, config.Password = server.User, server.Password
	config.Dump.ExecutionPath = ""
	config.IncludeTableRegex = []string{strings.ReplaceAll(table, ".", "\\.") + "$"}
	config.Logger = server.Logger
	made, err := canal.NewCanal(config)
	check(err)
	made.SetEventHandler(&Handler{clock: clock})
	check(made.RunFrom(from))
}

func main() {
	a := os.Args[1:]
	if len(a) != 9 {
		fmt.Fprintln(os.Stderr, "usage: syncer|canal HOST PORT USER PASSWORD FILE OFFSET TABLE ROWS")
		os.Exit(2)
	}
	server := replication.BinlogSyncerConfig{
		ServerID: 4310, Flavor: mysql.MySQLFlavor, Host: a[1], Port: uint16(number(a[2])),
		User: a[3], Password: a[4],
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	from := mysql.Position{Name: a[5], Pos: uint32(number(a[6]))}
	clock := &Clock{wanted: number(a[8])}
	if a[0] == "canal" {
		readWithCanal(server, a[7], from, clock)
	} else {
		readWithSyncer(server, from, clock)
	}
}
