// Consumes a destination with canal-go and prints what it acknowledges, as Reader.java does.
//
// Arguments: simple|cluster ADDRESS DESTINATION USER PASSWORD FILTER SIZE ROLLBACK_EVERY OUTSTANDING.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/withlin/canal-go/client"
	pb "github.com/withlin/canal-go/protocol"
	entries "github.com/withlin/canal-go/protocol/entry"
	"google.golang.org/protobuf/proto"
)

func show(parts ...interface{}) {
	line, err := json.Marshal(parts)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func number(text string) int {
	found, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return found
}

func rowsOf(message *pb.Message) []interface{} {
	found := []interface{}{}
	for number := range message.Entries {
		entry := &message.Entries[number]
		if entry.GetEntryType() != entries.EntryType_ROWDATA {
			continue
		}
		change := new(entries.RowChange)
		if err := proto.Unmarshal(entry.GetStoreValue(), change); err != nil {
			panic(err)
		}
		header := entry.GetHeader()
		table := header.GetSchemaName() + "." + header.GetTableName()
		if change.GetIsDdl() {
			found = append(found, []interface{}{"DDL", table, change.GetSql()})
		} else if change.GetSql() != "" {
			found = append(found, []interface{}{"SQL", table, change.GetSql()})
		}
		for _, row := range change.GetRowDatas() {
			columns := row.GetAfterColumns()
			if change.GetEventType() == entries.EventType_DELETE {
				columns = row.GetBeforeColumns()
			}
			shown := []interface{}{}
			for _, column := range columns {
				var value interface{} = column.GetValue()
				if column.GetIsNull() {
					value = nil
				}
				shown = append(shown, []interface{}{column.GetName(), value, column.GetSqlType()})
			}
			found = append(found, []interface{}{change.GetEventType().String(), table, shown})
		}
	}
	return found
}

// connection is what both of canal-go's connectors do.
type connection interface {
	Connect() error
	Subscribe(filter string) error
	GetWithOutAck(batchSize int32, timeOut *int64, units *int32) (*pb.Message, error)
	Ack(batchId int64) error
	RollBack(batchId int64) error
	DisConnection() error
}

// cluster returns a connector that finds its server in ZooKeeper. It is made once: the node that
// it has there is gone after DisConnection, and without one it does not connect again.
func cluster(arguments []string) connection {
	node, err := client.NewCanalClusterNode(arguments[2], []string{arguments[1]}, 10*time.Second)
	if err != nil {
		panic(err)
	}
	found, err := client.NewClusterCanalConnector(node, arguments[3], arguments[4], arguments[2],
		60000, 60*60*1000)
	if err != nil {
		panic(err)
	}
	return found
}

func simple(arguments []string) connection {
	address := strings.Split(arguments[1], ":")
	return client.NewSimpleCanalConnector(address[0], number(address[1]), arguments[3],
		arguments[4], arguments[2], 60000, 60*60*1000)
}

// consume returns with the panics that canal-go has for errors of the server.
func consume(connector connection, arguments []string) (err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("%v", panicked)
		}
	}()
	if err = connector.Connect(); err != nil {
		return err
	}
	if arguments[0] == "simple" {
		defer connector.DisConnection()
	}
	if err = connector.Subscribe(arguments[5]); err != nil {
		return err
	}
	received, every := 0, number(arguments[7])
	for {
		timeout, units := int64(50), int32(2)
		message, err := connector.GetWithOutAck(int32(number(arguments[6])), &timeout, &units)
		if err != nil {
			return err
		}
		if message.Id <= 0 {
			continue
		}
		received++
		if every > 0 && received%every == 0 {
			if err := connector.RollBack(message.Id); err != nil {
				return err
			}
			show("rolledBack")
			continue
		}
		show("taken", message.Id, rowsOf(message))
		if err := connector.Ack(message.Id); err != nil {
			return err
		}
	}
}

func main() {
	arguments := os.Args[1:]
	var connector connection
	for {
		if arguments[0] == "simple" {
			connector = simple(arguments)
		} else if connector == nil {
			connector = cluster(arguments)
		}
		if err := consume(connector, arguments); err != nil {
			show("error", err.Error())
		}
		time.Sleep(200 * time.Millisecond)
	}
}
