-- A shop with rows from before, and an event that changes it every second.

CREATE DATABASE shop;
CREATE TABLE shop.orders (
    id INT PRIMARY KEY AUTO_INCREMENT,
    customer VARCHAR(40) NOT NULL,
    total DECIMAL(10, 2) NOT NULL,
    status VARCHAR(20) NOT NULL
);
INSERT INTO shop.orders (customer, total, status) VALUES
    ('Ada', 9.90, 'paid'), ('Grace', 18.40, 'sent'), ('Linus', 47.00, 'placed');

CREATE USER 'databus'@'%' IDENTIFIED BY 'for-trying-only';
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'databus'@'%';
GRANT SELECT ON shop.* TO 'databus'@'%';

CREATE EVENT shop.somebody_buys ON SCHEDULE EVERY 1 SECOND DO
    INSERT INTO shop.orders (customer, total, status)
    VALUES (ELT(1 + FLOOR(3 * RAND()), 'Ada', 'Grace', 'Linus'), 100 * RAND(), 'placed');
CREATE EVENT shop.somebody_pays ON SCHEDULE EVERY 2 SECOND DO
    UPDATE shop.orders SET status = 'paid' WHERE status = 'placed' ORDER BY id LIMIT 1;
